from tensorprimat.entry import run

raise SystemExit(run("estimate.cli"))
