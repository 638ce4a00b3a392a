"""Turns events into signals for people."""
