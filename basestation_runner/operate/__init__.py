"""What operators' commands do: ask the watcher through its control socket, and show what it says."""
