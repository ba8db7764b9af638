"""What teaches: learning experiments, notebooks and pictures, as commands of ``attnbench``."""
