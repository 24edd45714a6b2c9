"""What checkpoints cost and what they give: the time of a commit, the time of a recovery, the bytes written."""
