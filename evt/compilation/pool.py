"""Tasks in threads: ``run_all(tasks, workers, give_up)``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import Condition, Lock, Thread


class Cancellation:
    """A request to end work in other threads: ``cancel`` calls the functions that :meth:`watch` has registered."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._watched: list[Callable[[], None]] = []
        self.is_cancelled = False

    def cancel(self) -> None:
        """Ask for the end of the work; a second call does nothing."""
        with self._mutex:
            self.is_cancelled = True
            watched, self._watched = self._watched, []
        for each in watched:
            each()

    def check(self) -> None:
        """Raise CancelledError after a cancellation."""
        if self.is_cancelled:
            raise CancelledError

    @contextmanager
    def ends_this_thread(self) -> Iterator[None]:
        """Let :meth:`cancel` end the builds that this thread starts within the ``with`` block."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    @contextmanager
    def watch(self, stop: Callable[[], None]) -> Iterator[None]:
        """Let :meth:`cancel` call a function within the ``with`` block; call it at once if it is too late."""
        with self._mutex:
            cancelled = self.is_cancelled
            if not cancelled:
                self._watched.append(stop)
        if cancelled:
            stop()
        try:
            yield
        finally:
            with self._mutex, suppress(ValueError):
                self._watched.remove(stop)


class CancelledError(Exception):
    """The work was ended by :meth:`Cancellation.cancel`."""


#: The cancellation that ends the work of a thread.
_CURRENT: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


def current_cancellation() -> Cancellation | None:
    """Return the cancellation that ends the work of this thread, if any."""
    return _CURRENT.get()


#: Tells whether another worker may start beside a number of workers; the first one always may.
Workers = Callable[[int], bool]


def run_all(tasks: Iterable[Callable[[], None]], workers: Workers, give_up: Callable[[], None]) -> None:
    """Run tasks, each in a worker, and wait for them.

    A free worker takes the next task from the iterable, one worker at a time: resources that a generator opens for a
    task are open only while the task runs.

    At the first error, also of the iterable, at Ctrl-C and at a cancellation, call ``give_up``, which ends the running
    tasks; start no others, and raise the error: CancelledError for a cancellation.

    A pool of concurrent.futures would keep the interpreter from exiting before its threads; and after a Ctrl-C,
    Thread.join mistakes a running thread for one that has ended.
    """
    todo = iter(tasks)
    errors: list[BaseException] = []
    taking = Lock()
    changed = Condition()
    running = 0

    def stop(error: BaseException) -> None:
        with taking:  # no task is taken after this point
            errors.append(error)
        give_up()

    def next_task() -> Callable[[], None] | None:
        with taking:
            return None if errors else next(todo, None)

    def work() -> None:
        nonlocal running
        try:
            while task := next_task():
                start()
                task()
        except BaseException as error:
            stop(error)
        finally:
            with changed:
                running -= 1
                changed.notify_all()

    def start() -> None:
        """Start a worker, unless all are running."""
        nonlocal running
        with changed:
            if not workers(running):
                return
            running += 1
        try:
            Thread(target=work, name="evt-build", daemon=True).start()
        except BaseException:
            with changed:
                running -= 1
            raise

    def wait() -> None:
        with changed:
            changed.wait_for(lambda: running == 0)

    try:
        with (current_cancellation() or Cancellation()).watch(lambda: stop(CancelledError())):
            start()
            wait()
    except BaseException as error:
        stop(error)
        wait()
    if errors:
        raise errors[0]
