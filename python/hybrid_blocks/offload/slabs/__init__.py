"""Offload where the device's blocks lie in slabs: ids of several spaces, states in one slot."""
