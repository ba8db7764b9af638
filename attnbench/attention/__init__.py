"""What attention means: the one door, masks, softmax and the choice of a kernel."""
