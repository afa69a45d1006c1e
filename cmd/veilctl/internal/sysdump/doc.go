// Package sysdump gathers all that a bug report needs in one file, without secrets: of a cluster,
// or of this node alone.
//
// It promises that it never reads a Secret, that every text passes through package redact, and that
// the archive lists what it has, what could not be read, and what was left out. A part that cannot
// be read does not end the dump.
//
// Start reading at Command.
package sysdump
