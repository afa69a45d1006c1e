// Package atomicfile writes small files so that a reader, a crash or a power cut finds the old
// content or the new one, never a part. It also checks whether a path is in memory or on a disk. It
// does not follow a symbolic link at the end of a path: Write replaces the link, and Create returns
// an error.
//
// Start reading at Write.
package atomicfile
