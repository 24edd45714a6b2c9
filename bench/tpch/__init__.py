"""TPC-H over tables that change: its queries kept up to date, compared with computing them again."""
