from tensorprimat.entry import run

raise SystemExit(run("measure.cli"))
