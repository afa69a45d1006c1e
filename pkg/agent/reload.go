package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/config"
)

// reloadEvery is the interval of reading the configuration. A mounted ConfigMap is replaced by
// moving a symbolic link, which a watch on the file would miss.
const reloadEvery = 2 * time.Second

// watchConfig applies what may change while the daemon runs: the MTU and masquerading. Other
// changes are logged and wait for a restart, which costs no packet.
func (a *Agent) watchConfig(ctx context.Context) error {
	if a.reload == nil {
		return nil
	}
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			a.takeConfig(a.reload())
		}
	}
}

// takeConfig applies what it can of next. An invalid configuration, or a change that needs a
// restart, is a problem until the file is valid or as before. Only watchConfig calls it.
func (a *Agent) takeConfig(next config.Config, err error) {
	if err != nil {
		a.noteConfig(fmt.Sprintf("the configuration was changed and is not valid: the old one "+
			"stays in force, and a restart of veild would fail: %v", err))
		return
	}
	was := a.config()
	live := was
	live.MTU, live.Masquerade = next.MTU, next.Masquerade
	if len(config.Changed(live, was)) > 0 {
		a.change(func(v *view) { v.cfg = live })
		a.log.Info("configuration changed", "mtu", live.MTU, "masquerade", live.Masquerade)
		a.poke()
	}
	problem := ""
	if keys := config.Changed(live, next); len(keys) > 0 {
		problem = fmt.Sprintf("the configuration changed in %s, which needs a restart of veild: "+
			"kubectl -n kube-system rollout restart daemonset/veild; no packet is lost",
			strings.Join(keys, ", "))
	}
	a.noteConfig(problem)
}

// noteConfig stores what is wrong with the file, empty for nothing, and logs a new problem.
func (a *Agent) noteConfig(problem string) {
	if problem != "" && problem != a.view.Load().configProblem {
		a.log.Warn("not as it should be", "problem", problem)
	}
	a.change(func(v *view) { v.configProblem = problem })
}
