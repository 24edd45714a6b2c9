"""TPC-H over tables that change: its queries kept up to date, beside computing them anew."""
