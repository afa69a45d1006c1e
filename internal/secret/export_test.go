package secret

// ScrubVectors is the part of Scrub that overwrites the vector registers.
var ScrubVectors = scrubVectors
