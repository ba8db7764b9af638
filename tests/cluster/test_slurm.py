"""``--cluster slurm``, through dask-jobqueue and a Slurm that runs on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

RUN = "import sys; from attnbench.cli import main; sys.exit(main())"
MAIN = (sys.executable, "-c", RUN, "check", "additive", "--profile", "quick")


def test_a_check_runs_as_a_job_of_slurm(slurm: Path) -> None:
    options = slurm / "cluster.toml"
    options.write_text(
        f"kind = 'slurm'\ncores = 1\nprocesses = 1\nmemory = '2GiB'\nwalltime = '00:10:00'\n"
        f"interface = 'lo'\nlog_directory = '{slurm}'\nlocal_directory = '{slurm}'\n"
    )
    wanted = ("--invariant", "weights_sum_to_one", "--json", "--cluster", str(options))
    done = subprocess.run([*MAIN, *wanted], capture_output=True, text=True, check=False)
    logs = "\n".join(path.read_text()[-2000:] for path in slurm.glob("*.err"))
    assert done.returncode == 0, f"{done.stderr}\n{logs}"
    (outcome,) = json.loads(done.stdout)["outcomes"]
    assert outcome["status"] == "passed"
    jobs = (slurm / "slurmctld.log").read_text()
    assert "dask-worker" in jobs or "sched: Allocate JobId=" in jobs
