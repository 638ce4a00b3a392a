"""What every peer is asked, a file each."""
