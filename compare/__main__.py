from tensorprimat.entry import run

raise SystemExit(run("compare.cli"))
