"""A workload on two workers: one is killed in the middle of a measurement. Prints the outcome as JSON.

``python -m tests.farm.killed_worker WORKLOAD COUNT``, with the environment of the fixture ``timed``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from evt.farm import summarise, tasks_of
from evt.farm.cluster import run_on_cluster
from evt.farm.workers import local_gpus
from evt.measured import Store
from evt.tuning.space import Options
from evt.workload import read_workload
from tests.support.stand_in import KILL, machine


def main(workload: str, count: int) -> None:
    """Run the first tasks of a workload; a worker dies after the first result."""
    tasks, kill, results = tasks_of(read_workload(workload))[:count], Path(os.environ[KILL]), []
    with local_gpus(2) as client:
        link = client.dashboard_link
        options = Options(rounds=9, again=False)
        for result in run_on_cluster(tasks, client, options, make=machine, here=2):
            results.append(result)
            if len(results) == 1:
                kill.touch()
        again = list(run_on_cluster(tasks, client, options, make=machine, here=2))
    outcome = {
        "dashboard": link,
        "killed": not kill.exists(),
        "summary": summarise(results).to_json(),
        "again": summarise(again).to_json(),
        "chosen": {task.title: tuning.chosen is not None for task, tuning in results},
        "measurements": len(Store()),
    }
    print(json.dumps(outcome))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
