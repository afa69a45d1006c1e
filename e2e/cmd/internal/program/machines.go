package program

import "fmt"

// MaxMachines is how many virtual machines a command makes at most. Each takes 2 GiB of memory, and all of a processor while it boots.
const MaxMachines = 4

// CheckMachines says what is wrong with a number of virtual machines, nil when nothing is.
func CheckMachines(n int) error {
	if n < 1 || n > MaxMachines {
		return fmt.Errorf("write 1 to %d machines, of which each takes 2 GiB of memory", MaxMachines)
	}
	return nil
}
