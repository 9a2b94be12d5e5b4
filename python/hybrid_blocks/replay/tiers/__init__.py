"""Replays with tiers below the device: host memory and a disk, under vLLM's own scheduler."""
