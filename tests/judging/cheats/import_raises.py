raise RuntimeError("no")
