"""What has become worse: two results of a benchmark, or one and the baseline that is kept in this folder."""
