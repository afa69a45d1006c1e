// Command veil-site links this cluster with others, which the configuration of veild names as
// sites: docs/how-to/sites.md. It states nodes and exported services to them, and mirrors theirs.
// One of several replicas works, the one that holds a lease.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"

	"github.com/spf13/pflag"

	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/site/replica"
	"github.com/kubeveil/kubeveil/pkg/version"
)

const usage = `Link this cluster with the sites in the configuration of veild.

Usage:
  veil-site [flags]   run until SIGTERM; without sites, wait for it
  veil-site --probe=alive|ready
                      exit with 0 if the running veil-site is
  veil-site --version

The configuration and the credentials are read again every few seconds. A change needs no restart.

Examples:
  veil-site --config /etc/kubeveil/veild.yaml --credentials /etc/kubeveil/sites
                      a file of --credentials is a kubeconfig for the site of its name
  veilctl site status
                      what is linked, and what is wrong

Flags:
`

type options struct {
	config, kubeadm string
	credentials     string
	clusterName     string
	identity        string
	namespace       string
	metrics         string
	socket, probe   string
	level           slog.Level
	format          commandline.LogFormat
	version         bool
}

func main() { commandline.Main("veil-site", parse, run) }

// parse reads the flags.
func parse(args []string, help io.Writer) (*options, error) {
	o := &options{}
	fs := commandline.New("veil-site")
	o.flags(fs)
	if err := commandline.ParseAll(fs, usage, args, help); err != nil {
		return nil, err
	}
	return o, o.check()
}

// check returns an error if a flag is wrong.
func (o *options) check() error {
	if o.probe != "" && replica.Probes[o.probe] == "" {
		return fmt.Errorf("--probe %s: write alive or ready", o.probe)
	}
	if o.metrics == "" {
		return nil
	}
	if _, err := net.ResolveTCPAddr("tcp", o.metrics); err != nil {
		return fmt.Errorf("--metrics %s: write ADDRESS:PORT, such as 127.0.0.1:9634: %w", o.metrics,
			err)
	}
	return nil
}

func (o *options) flags(fs *pflag.FlagSet) {
	fs.StringVar(&o.config, "config", "/etc/kubeveil/veild.yaml",
		"configuration `file` of veild, for ranges, sites and the API server")
	fs.StringVar(&o.kubeadm, "kubeadm-config", "/etc/kubeveil/kubeadm.yaml",
		"`file` with kubeadm's ClusterConfiguration, if kubeadmConfig is set")
	fs.StringVar(&o.credentials, "credentials", "/etc/kubeveil/sites",
		"`folder` with a kubeconfig for each site, by its name")
	fs.StringVar(&o.clusterName, "cluster-name", "local",
		"`name` of this cluster in the label multicluster.kubernetes.io/source-cluster")
	fs.StringVar(&o.identity, "identity", "",
		"`name` of this replica in the lease, NODE/NAME if two may be on one node; empty means the "+
			"name of the host")
	fs.StringVar(&o.namespace, "namespace", "kube-system", "`namespace` of the lease")
	fs.StringVar(&o.metrics, "metrics", "127.0.0.1:9634",
		"`address` of /metrics, /healthz and /readyz; empty: none")
	fs.StringVar(&o.socket, "socket", "/run/veil-site/probe.sock",
		"Unix `socket` of /healthz and /readyz, for --probe; empty: none")
	fs.StringVar(&o.probe, "probe", "", "`question` to the veil-site at --socket: alive or ready")
	fs.TextVar(&o.level, "log-level", slog.LevelInfo, "`level`: debug, info, warn or error")
	fs.TextVar(&o.format, "log-format", commandline.LogText, commandline.LogFormatUsage)
	fs.BoolVar(&o.version, "version", false, "print the version")
}

func run(ctx context.Context, o *options) error {
	if o.version {
		fmt.Println(version.String())
		return nil
	}
	if o.probe != "" {
		return replica.Probe(ctx, o.socket, o.probe)
	}
	if o.identity == "" {
		var err error
		if o.identity, err = os.Hostname(); err != nil {
			return err
		}
	}
	return replica.Run(ctx, replica.Config{
		Read:        func() (config.Config, error) { return readConfig(o.config, o.kubeadm) },
		Credentials: o.credentials, Cluster: o.clusterName, Namespace: o.namespace,
		Identity: o.identity, Metrics: o.metrics, Socket: o.socket,
		Log: slog.New(o.format.Handler(os.Stderr, o.level))})
}

// readConfig reads the configuration of veild. The file of kubeadm may be missing.
func readConfig(path, kubeadmPath string) (config.Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return config.Config{}, fmt.Errorf("configuration: %w", err)
	}
	kubeadm, err := os.ReadFile(kubeadmPath)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return config.Config{}, fmt.Errorf("configuration: %w", err)
	}
	return config.Parse("veil-site", text, kubeadm)
}
