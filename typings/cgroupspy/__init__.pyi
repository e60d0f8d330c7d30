# Stub of cgroupspy 0.2.3: what this project uses.
