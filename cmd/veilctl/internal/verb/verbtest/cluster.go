package verbtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// Cluster is an API server with nodes. It runs veilctl in the pods of veild, in this process.
type Cluster struct {
	// Sockets holds the socket of veild by node. "" means that the node has no pod of veild.
	Sockets map[string]string
	// Pods holds the node of each other pod, by namespace/name.
	Pods map[string]string
	// Veilctl runs a command line of veilctl.
	Veilctl func(ctx context.Context, args []string, out, progress io.Writer) error

	// In is the standard input of the running call of Veilctl. It does not end.
	In io.Reader

	// running is held during a call of Veilctl, because verbs set variables of package cobra. It
	// guards In.
	running sync.Mutex
}

// Kubeconfig serves c until the test ends, and returns a kubeconfig for it.
func (c *Cluster) Kubeconfig(t *testing.T) string {
	t.Helper()
	return Kubeconfig(t, c)
}

// Kubeconfig serves an API server until the test ends, and returns a kubeconfig for it.
func Kubeconfig(t *testing.T, h http.Handler) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	filetest.Write(t, file, fmt.Appendf(nil, "clusters: [{name: c, cluster: {server: '%s'}}]\n"+
		"contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n", server.URL), 0o600)
	return file
}

func (c *Cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const system, veild = "/api/v1/namespaces/" + remote.SystemNamespace + "/pods", "veild-"
	rest, inSystem := strings.CutPrefix(r.URL.Path, system+"/"+veild)
	node, isExec := strings.CutSuffix(rest, "/exec")

	switch {
	case inSystem && isExec:
		c.exec(w, r, c.Sockets[node])
	case r.URL.Path == system:
		list := podList()
		for node, socket := range c.Sockets {
			if socket != "" {
				list.Items = append(list.Items, pod(remote.SystemNamespace, veild+node, node))
			}
		}
		answer(w, list)
	case r.URL.Path == "/api/v1/nodes":
		list := corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}}
		for node := range c.Sockets {
			list.Items = append(list.Items, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node,
				Labels: map[string]string{corev1.LabelOSStable: "linux"}}})
		}
		answer(w, list)
	case r.URL.Path == "/apis/kubeveil.io/v1alpha1/veilnodes":
		answer(w, metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{
			Kind: "VeilNodeList", APIVersion: "kubeveil.io/v1alpha1"}})
	default:
		c.tenant(w, strings.Split(strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/"), "/"))
	}
}

// tenant answers requests for pods and for one pod of a namespace.
func (c *Cluster) tenant(w http.ResponseWriter, path []string) {
	list := podList()
	for name, node := range c.Pods {
		namespace, name, _ := strings.Cut(name, "/")
		switch {
		case path[0] != namespace:
		case len(path) < 3:
			list.Items = append(list.Items, pod(namespace, name, node))
		case path[2] == name:
			answer(w, pod(namespace, name, node))
			return
		}
	}
	if len(path) < 3 {
		answer(w, list)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusNotFound)
	fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound",`+
		`"code":404}`)
}

// exec runs veilctl for a request to exec in a pod, by the WebSocket protocol v5.channel.k8s.io.
func (c *Cluster) exec(w http.ResponseWriter, r *http.Request, socket string) {
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{"v5.channel.k8s.io": {
		Binary: true, Channels: []wsstream.ChannelType{wsstream.ReadChannel,
			wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel,
			wsstream.IgnoreChannel}}})
	_, streams, err := conn.Open(w, r)
	if err != nil {
		return // the client has returned the error
	}
	defer conn.Close()

	args := slices.Clone(r.URL.Query()["command"][1:])
	for i := range args {
		if args[i] == abi.AdminSocket {
			args[i] = socket
		}
	}
	out, stderr, ended := streams[1], streams[2], streams[3]
	c.running.Lock()
	c.In = streams[0]
	err = c.Veilctl(r.Context(), args, out, stderr)
	c.running.Unlock()

	status := metav1.Status{Status: metav1.StatusSuccess}
	if err != nil {
		if !errors.Is(err, verb.ErrWrong) {
			fmt.Fprintln(stderr, "veilctl:", err)
		}
		status = metav1.Status{Status: metav1.StatusFailure, Reason: "NonZeroExitCode",
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{
				{Type: "ExitCode", Message: fmt.Sprint(verb.ExitStatus(err))}}}}
	}
	_ = json.NewEncoder(ended).Encode(status) // a client that is gone does not need it
}

func podList() corev1.PodList {
	return corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
}

func pod(namespace, name, node string) corev1.Pod {
	return corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.PodSpec{NodeName: node}}
}

func answer(w http.ResponseWriter, object any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object) // a client that is gone does not need it
}
