// Package stream reads the fields of a protobuf message that is too long to hold: it reads or skips
// one field at a time.
//
// A message that ends early and a field longer than a limit are errors that match ErrMalformed.
//
// Start reading at Each.
package stream
