// Package sysdump gathers all that a bug report needs in one file, without secrets: of a cluster,
// or of this node alone.
//
// It never reads a Secret. Every text passes through package redact. The archive's manifest lists
// the files, what could not be read, and what is never read. A part that cannot be read does not
// end the dump.
//
// Start reading at Command.
package sysdump
