package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// reloadEvery is the interval at which the configuration is read. The file is not watched, because
// a mounted ConfigMap is replaced by moving a symbolic link, which a watch on the file would miss.
const reloadEvery = 2 * time.Second

// watchConfig applies changes of the configuration that need no restart: the MTU and masquerading.
// It logs other changes, which need a restart of veild. A restart loses no packet.
func (a *Agent) watchConfig(ctx context.Context) error {
	if a.reload == nil {
		return nil
	}
	return poll.Each(ctx, reloadEvery, func(time.Time) { a.takeConfig(a.reload()) })
}

// takeConfig applies the changes in next that need no restart. An invalid configuration (err), or a
// change that needs a restart, is a problem until the file is valid or as before. Only watchConfig
// calls it.
func (a *Agent) takeConfig(next config.Config, err error) {
	if err != nil {
		a.noteConfig(fmt.Sprintf("the changed configuration is not valid: correct it, because "+
			"veild would not start again with it; until then the old one stays in force: %v", err))
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
		problem = fmt.Sprintf("%s changed in the configuration and needs a restart of veild, "+
			"which loses no packet: kubectl -n kube-system rollout restart daemonset/veild",
			strings.Join(keys, ", "))
	}
	a.noteConfig(problem)
}

// noteConfig stores the problem of the configuration file, and logs it if it is new. An empty
// string means that there is no problem.
func (a *Agent) noteConfig(problem string) {
	if problem != "" && problem != a.view.Load().configProblem {
		a.log.Warn("new problem of the node", "problem", problem)
	}
	a.change(func(v *view) { v.configProblem = problem })
}
