// Package atomicfile writes small files so that a reader, a crash or a power cut finds the old
// content or the new one, never a part. It reports whether a path is in memory or on a disk. It
// never follows a symbolic link in the last part of a path: Write replaces the link, Create refuses
// it.
//
// Start reading at Write.
package atomicfile
