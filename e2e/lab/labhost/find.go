package labhost

import (
	"os"
	"path/filepath"
	"strconv"
)

// Processes returns the running processes of the host whose program file is called name. It finds
// them in the machine's /proc.
func (h *Host) Processes(name string) ([]*os.Process, error) {
	mine, err := os.Readlink(h.proc("ns/pid"))
	if err != nil {
		return nil, err
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}

	var out []*os.Process
	for _, dir := range dirs {
		// A process whose links cannot be read has ended.
		ns, err := os.Readlink(dir + "/ns/pid")
		if err != nil || ns != mine {
			continue
		}
		exe, err := os.Readlink(dir + "/exe")
		if err != nil || filepath.Base(exe) != name {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		p, err := os.FindProcess(pid)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}

	return out, nil
}
