package network

import (
	"time"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/nodes"
	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
)

// ReleaseCases returns the cases of releases, in the order in which they run. They install and
// remove Kubeveil themselves, from the folders of releases. Cases whose names begin with "chart"
// do not need the others.
func ReleaseCases(r nodes.Releases) []session.Case {
	fresh := []session.Need{session.Fresh, session.TwoWorkers}
	return append(first()[:1],
		session.Case{Name: "last-release", About: "the last release is installed, and pods talk",
			Needs: fresh, Limit: 10 * time.Minute, Breaks: true, Run: r.InstallLast},
		session.Case{Name: "release-upgraded", About: "the last release is replaced by this one " +
			"under load, and no packet is lost", Needs: fresh, Limit: 12 * time.Minute,
			Run: r.Upgrade},
		session.Case{Name: "release-uninstalled", About: "nodes are as before the installation, " +
			"and no object is left", Needs: fresh, Limit: 8 * time.Minute, Breaks: true,
			Run: r.Uninstall},

		session.Case{Name: "chart-installed", About: "nodes become Ready by helm install, and " +
			"pods talk", Needs: fresh, Limit: 10 * time.Minute, Breaks: true, Run: r.InstallChart},
		session.Case{Name: "chart-upgraded", About: "helm upgrade enforces policies under load, " +
			"and no packet is lost", Needs: fresh, Limit: 12 * time.Minute, Run: r.UpgradeChart},
		session.Case{Name: "chart-uninstalled", About: "helm uninstall leaves nothing on nodes " +
			"and no object", Needs: fresh, Limit: 8 * time.Minute, Run: r.UninstallChart},
	)
}
