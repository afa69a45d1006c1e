package agent

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/agent/plan/plantest"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// Changed keys of the configuration file that need a restart are shown as a problem as long as they
// differ, and logged once.
func TestChangesThatNeedARestartAreShown(t *testing.T) {
	var log bytes.Buffer
	in := plantest.Two(t)
	a := &Agent{log: slog.New(slog.NewTextHandler(&log, nil)), wake: make(chan struct{}, 1)}
	a.view.Store(&view{news: news{cfg: in.Config}})
	ranged := in.Config
	ranged.NodeRanges = prefixes("198.18.0.0/24")
	both := ranged
	both.MTU, both.LogLevel = 1400, "debug"

	for _, step := range []struct {
		name string
		next config.Config
		err  error
		// says are words that the problem must contain. An empty list means that there is no
		// problem.
		says []string
		mtu  int
		logs int
	}{
		{"as it was", in.Config, nil, nil, 0, 0},
		{"a typo", config.Default(), errors.New("mtuu: unknown key"),
			[]string{"mtuu", "old one stays", "would not start again with it"}, 0, 1},
		{"the same typo", config.Default(), errors.New("mtuu: unknown key"), []string{"mtuu"},
			0, 1},
		{"another typo", config.Default(), errors.New("ntu: unknown key"), []string{"ntu"}, 0, 2},
		{"what waits for a restart", ranged, nil,
			[]string{"nodeRanges changed in the configuration", "rollout restart"}, 0, 3},
		{"the same", ranged, nil, []string{"nodeRanges"}, 0, 3},
		{"more, of which some is taken over", both, nil, []string{"nodeRanges, logLevel changed in the configuration"},
			1400, 4},
		{"as it was, once more", in.Config, nil, nil, 0, 4},
		{"what waits for a restart, once more", ranged, nil, []string{"nodeRanges"}, 0, 5},
	} {
		t.Run(step.name, func(t *testing.T) {
			a.takeConfig(step.next, step.err)
			now := a.view.Load()
			for _, want := range step.says {
				if !strings.Contains(now.configProblem, want) {
					t.Errorf("%q does not say %q", now.configProblem, want)
				}
			}
			if len(step.says) == 0 && now.configProblem != "" {
				t.Errorf("the problem stays: %s", now.configProblem)
			}
			if now.cfg.MTU != step.mtu || len(now.cfg.NodeRanges) > 0 {
				t.Errorf("in force are mtu %d, nodeRanges %v", now.cfg.MTU, now.cfg.NodeRanges)
			}
			if n := strings.Count(log.String(), "level=WARN"); n != step.logs {
				t.Errorf("%d warnings were logged, want %d:\n%s", n, step.logs, &log)
			}
		})
	}
}
