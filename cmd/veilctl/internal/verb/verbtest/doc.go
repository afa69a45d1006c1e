// Package verbtest runs verbs of veilctl in tests, and answers them as veild does. Start reading at
// Run and Daemon.
package verbtest
