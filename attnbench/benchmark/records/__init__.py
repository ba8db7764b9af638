"""Records of measurements, and the files that store them."""
