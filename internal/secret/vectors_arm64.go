package secret

// scrubVectors overwrites the vector registers.
func scrubVectors()
