// Package crypttest has the disk of a volume in memory, for tests. Imported by tests only.
package crypttest
