"""What operators of several families stand on: columns in, columns out; knows no operator."""
