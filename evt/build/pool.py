"""Tasks in threads: ``run_all(tasks, workers, give_up)``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from threading import Condition, Thread


def run_all(tasks: Iterable[Callable[[], None]], workers: int, give_up: Callable[[], None]) -> None:
    """Run tasks, at most ``workers`` at a time, and wait for them.

    At the first error, and at Ctrl-C, call ``give_up``, which ends the running tasks; start no others, and raise the
    error.

    A pool of concurrent.futures would keep the interpreter from exiting before its threads; and after a Ctrl-C,
    Thread.join mistakes a running thread for one that has ended.
    """
    todo = deque(tasks)
    errors: list[BaseException] = []
    changed = Condition()
    running = 0

    def stop(error: BaseException) -> None:
        errors.append(error)
        todo.clear()
        give_up()

    def next_task() -> Callable[[], None] | None:
        try:
            return todo.popleft()
        except IndexError:
            return None

    def work() -> None:
        nonlocal running
        try:
            while task := next_task():
                task()
        except BaseException as error:
            stop(error)
        finally:
            with changed:
                running -= 1
                changed.notify_all()

    def start() -> None:
        nonlocal running
        with changed:
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
        for _ in range(min(workers, len(todo))):
            start()
        wait()
    except BaseException as error:
        stop(error)
        wait()
    if errors:
        raise errors[0]
