"""Tasks in threads: ``run_all(tasks, workers, give_up)``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Condition, Lock, Thread


def run_all(tasks: Iterable[Callable[[], None]], workers: int, give_up: Callable[[], None]) -> None:
    """Run tasks, at most ``workers`` at a time, and wait for them.

    A free worker takes the next task from the iterable, one worker at a time: resources that a generator opens for a
    task are open only while the task runs.

    At the first error, also of the iterable, and at Ctrl-C, call ``give_up``, which ends the running tasks; start no
    others, and raise the error.

    A pool of concurrent.futures would keep the interpreter from exiting before its threads; and after a Ctrl-C,
    Thread.join mistakes a running thread for one that has ended.
    """
    todo = iter(tasks)
    errors: list[BaseException] = []
    taking = Lock()
    changed = Condition()
    started = running = 0

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
        nonlocal started, running
        with changed:
            if started == workers:
                return
            started, running = started + 1, running + 1
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
        start()
        wait()
    except BaseException as error:
        stop(error)
        wait()
    if errors:
        raise errors[0]
