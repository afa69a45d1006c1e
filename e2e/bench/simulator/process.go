package simulator

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/bench/load"
)

// processor returns the CPU time of programs of the node, with all processes that they started.
func (s *run) processor(names ...string) (sum time.Duration, err error) {
	for _, name := range names {
		pids, err := s.processes(name)
		if err != nil {
			return 0, err
		}
		for _, pid := range pids {
			spent, err := load.ProcessCPU(pid)
			if err != nil {
				return 0, err
			}
			sum += spent
		}
	}
	return sum, nil
}

// resident returns the resident memory of a program and of the processes that it started, in MiB.
func (s *run) resident(name string) (sum float64, err error) {
	pids, err := s.processes(name)
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		mib, err := load.ResidentMiB(pid)
		if err != nil {
			return 0, err
		}
		sum += mib
	}
	return sum, nil
}

// processes returns the ids of a program and of the processes that it started, such as the device
// process of veil-wg.
func (s *run) processes(name string) ([]int, error) {
	all := []int{s.node.Program(name).PID()}
	for i := 0; i < len(all); i++ {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", all[i]))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			for _, word := range strings.Fields(string(text)) {
				pid, err := strconv.Atoi(word)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", file, err)
				}
				all = append(all, pid)
			}
		}
	}
	return all, nil
}
