"""Common code of several operator families: columns in, columns out; knows no operator."""
