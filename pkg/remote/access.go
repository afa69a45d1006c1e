package remote

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Access selects the credentials for a cluster. The zero value selects what kubectl would use:
// KUBECONFIG, otherwise ~/.kube/config, and its current context; in a pod the pod's account.
type Access struct{ Kubeconfig, Context string }

// Register adds the flags --kubeconfig and --context.
func (a *Access) Register(fs *pflag.FlagSet) {
	fs.StringVar(&a.Kubeconfig, "kubeconfig", "",
		"kubeconfig `file` (default: $KUBECONFIG, then ~/.kube/config)")
	fs.StringVar(&a.Context, "context", "",
		"`name` of a context in it (default: the current one)")
}

// Given reports whether one of the flags was set.
func (a *Access) Given() bool { return *a != Access{} }

// Open returns the cluster that a selects. Each request of it has a time limit. Open sends no
// request itself.
func (a *Access) Open() (*Cluster, error) {
	cfg, err := a.config()
	if err != nil {
		return nil, err
	}

	return New(cfg)
}

// config reads the kubeconfig. Errors name the file and the flag to set.
func (a *Access) config() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.Kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: a.Context}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	cfg, err := loader.ClientConfig()

	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("kubeconfig %s does not exist: name another with --kubeconfig",
			a.Kubeconfig)
	case clientcmd.IsEmptyConfig(err) && a.Kubeconfig != "":
		return nil, fmt.Errorf("kubeconfig %s is empty, or names no cluster: "+
			"name another with --kubeconfig", a.Kubeconfig)
	case clientcmd.IsEmptyConfig(err):
		return nil, errNone
	case err != nil:
		return nil, a.explain(loader, err)
	}
	return cfg, nil
}

var errNone = errors.New("no kubeconfig: name one with --kubeconfig, or set KUBECONFIG; kubeadm " +
	"has /etc/kubernetes/admin.conf")

// explain returns the reason why the kubeconfig selects no cluster. If it lacks the context, the
// error names the contexts that it has. err is the error of the loader.
func (a *Access) explain(loader clientcmd.ClientConfig, err error) error {
	all, unreadable := loader.RawConfig()
	name := cmp.Or(a.Context, all.CurrentContext)
	file := "the kubeconfig"
	if a.Kubeconfig != "" {
		file = "kubeconfig " + a.Kubeconfig
	}
	switch {
	case unreadable != nil || all.Contexts[name] != nil:
		return fmt.Errorf("%s: %w", file, err)
	case len(all.Contexts) > 0:
		return fmt.Errorf("%s has no context %q: name one of its contexts (%s) with --context", file,
			name, strings.Join(slices.Sorted(maps.Keys(all.Contexts)), ", "))
	case a.Kubeconfig == "" && len(all.Clusters) == 0:
		return errNone
	}
	return fmt.Errorf("%s has no contexts, so it has no context %q: name another with --kubeconfig",
		file, name)
}
