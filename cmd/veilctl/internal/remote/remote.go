package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/klog/v2"
)

// Namespace is where the manifests put everything that has a namespace
// (docs/design/0002-install.md).
const Namespace = "kube-system"

// requestLimit bounds one request, exec excepted, whose context does.
const requestLimit = 20 * time.Second

// Access says how a cluster is reached. The zero value is what kubectl would use: KUBECONFIG, else
// ~/.kube/config, current context.
type Access struct{ Kubeconfig, Context string }

// Register adds the flags --kubeconfig and --context.
func (a *Access) Register(fs *pflag.FlagSet) {
	fs.StringVar(&a.Kubeconfig, "kubeconfig", "",
		"kubeconfig `file` (default: what kubectl takes: $KUBECONFIG, then ~/.kube/config)")
	fs.StringVar(&a.Context, "context", "", "`name` of a context in it (default: the current one)")
}

// Given reports whether one of the flags was.
func (a *Access) Given() bool { return *a != Access{} }

// Cluster is a cluster that can be asked. It may be used from several goroutines.
type Cluster struct {
	// Server is the address of the API server as the kubeconfig has it.
	Server  string
	Config  *rest.Config
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
}

// Open reads the kubeconfig. It does not yet talk to the API server. Errors name the file and what
// to do.
func (a *Access) Open() (*Cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.Kubeconfig
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{CurrentContext: a.Context}).ClientConfig()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("kubeconfig %s does not exist: name another with --kubeconfig",
			a.Kubeconfig)
	case clientcmd.IsEmptyConfig(err) && a.Kubeconfig != "":
		return nil, fmt.Errorf("kubeconfig %s is empty, or names no cluster: name another with "+
			"--kubeconfig", a.Kubeconfig)
	case clientcmd.IsEmptyConfig(err):
		return nil, errors.New("no kubeconfig: name one with --kubeconfig, or set " +
			"KUBECONFIG; on a " +
			"control-plane node of kubeadm: --kubeconfig /etc/kubernetes/admin.conf")
	case err != nil:
		return nil, fmt.Errorf("kubeconfig %s: %w", a.Kubeconfig, err)
	}
	return New(cfg)
}

// New makes the clients of a configuration, and silences what client-go would write to standard
// error by itself.
func New(cfg *rest.Config) (*Cluster, error) {
	// Not klog.SetOutput: errors go to standard error besides.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	cfg = rest.CopyConfig(cfg)
	cfg.UserAgent, cfg.QPS, cfg.Burst, cfg.Timeout = "veilctl", 50, 100, requestLimit
	// Warnings of the API server are about its users' manifests, not about what is asked here.
	cfg.WarningHandler = rest.NoWarnings{}
	c := &Cluster{Server: cfg.Host, Config: cfg}
	var err error
	if c.Client, err = kubernetes.NewForConfig(cfg); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	c.Dynamic, err = dynamic.NewForConfig(cfg)
	return c, err
}

// Label selects the pods and DaemonSets of a component: veild or veil-wg.
func Label(component string) metav1.ListOptions {
	return metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=kubeveil,app.kubernetes.io/component=" + component}
}

// Pods are the pods of a component, by the name of their node: the newest where there are two.
func (c *Cluster) Pods(ctx context.Context, component string) (map[string]corev1.Pod, error) {
	list, err := c.Client.CoreV1().Pods(Namespace).List(ctx, Label(component))
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", component, err)
	}
	out := map[string]corev1.Pod{}
	for _, p := range list.Items {
		if old, ok := out[p.Spec.NodeName]; !ok ||
			old.CreationTimestamp.Before(&p.CreationTimestamp) {
			out[p.Spec.NodeName] = p
		}
	}
	return out, nil
}

// Exec runs a command in a container and returns its standard output, also beside an error, which
// ends with what the command said on standard error. The context's end ends the waiting; the
// command may go on.
func (c *Cluster) Exec(ctx context.Context, pod, container string,
	command ...string) ([]byte, error) {
	req := c.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace(Namespace).Name(
		pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdout: true,
			Stderr: true}, scheme.ParameterCodec)
	cfg := rest.CopyConfig(c.Config)
	cfg.Timeout = 0 // a stream
	e, err := remotecommand.NewWebSocketExecutor(cfg, "GET", req.URL().String())
	if err != nil {
		return nil, fmt.Errorf("exec in %s: %w", pod, err)
	}
	var out, said bytes.Buffer
	err = e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: &said})
	switch text := bytes.TrimSpace(said.Bytes()); {
	case err == nil:
		return out.Bytes(), nil
	case ctx.Err() != nil:
		return out.Bytes(), fmt.Errorf("exec in %s: no answer in time", pod)
	case len(text) > 0:
		return out.Bytes(), fmt.Errorf("exec in %s: %w: %s", pod, err, text)
	}
	return out.Bytes(), fmt.Errorf("exec in %s: %w", pod, err)
}
