package audit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/audit/result"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/redact/redacttest"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb/verbtest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

var sampleDir = flag.String("sample", "",
	"directory to which the page of the tests is written, to be looked at")

// node1 is a cluster of one node. Its API server has the secrets of redacttest, and runs pods.
type node1 struct {
	*redacttest.API
	// answers holds the node's answers, by verb. The answer of leakcheck is the log of the pod that
	// reads uplinks. A verb without an answer is an unknown verb.
	answers map[string]string
	// forbidden reports whether creating namespaces is forbidden.
	forbidden bool
	// made are the pods that were created. gone reports whether the namespace was deleted.
	made []corev1.Pod
	gone bool
	// interrupt is called when the pods are read; it may be nil.
	interrupt func()
}

func (n *node1) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const own = "/api/v1/namespaces/veilctl-report-x"
	path := r.URL.Path
	if !strings.HasSuffix(path, "/exec") {
		w.Header().Set("Content-Type", "application/json")
	}

	switch {
	case strings.HasSuffix(path, "/exec"):
		cluster := verbtest.Cluster{Sockets: map[string]string{"a": "s"}, Veilctl: n.veilctl}
		cluster.ServeHTTP(w, r)
	case path == "/api/v1/namespaces" && r.Method == http.MethodPost && n.forbidden:
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":403,`+
			`"reason":"Forbidden","message":"you may not make namespaces"}`)
	case path == "/api/v1/namespaces" && r.Method == http.MethodPost:
		fmt.Fprint(w, `{"kind":"Namespace","apiVersion":"v1",`+
			`"metadata":{"name":"veilctl-report-x"}}`)
	case path == own && r.Method == http.MethodDelete:
		n.gone = true
		n.API.ServeHTTP(w, r) // answers "not found"
	case path == own+"/serviceaccounts/default":
		fmt.Fprint(w, `{"kind":"ServiceAccount","apiVersion":"v1"}`)
	case path == own+"/pods" && r.Method == http.MethodPost:
		body, _ := io.ReadAll(r.Body) // decoding reports a truncated body
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			panic(err)
		}
		p := object.(*corev1.Pod)
		p.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
		n.made = append(n.made, *p)
		_ = json.NewEncoder(w).Encode(p)
	case path == own+"/pods":
		if n.interrupt != nil {
			n.interrupt()
		}
		var pods []any
		for _, p := range n.made {
			p.Status.Phase = corev1.PodSucceeded
			if n.interrupt != nil {
				p.Status.Phase = corev1.PodRunning
			}
			pods = append(pods, p)
		}
		fmt.Fprint(w, redacttest.ListOf("Pod", "v1", pods...))
	case strings.HasPrefix(path, own+"/pods/") && strings.HasSuffix(path, "/log"):
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprint(w, n.answers["leakcheck"])
	default:
		n.API.ServeHTTP(w, r)
	}
}

func (n *node1) veilctl(_ context.Context, args []string, out, progress io.Writer) error {
	text, known := n.answers[args[0]]
	if !known {
		return fmt.Errorf("unknown verb %q: %w", args[0], verb.ErrUsage)
	}
	_, err := io.WriteString(out, text)
	return err
}

// wellNode returns a node without problems, without frames in clear and without flows.
func wellNode() *node1 {
	return &node1{API: redacttest.Planted(), answers: map[string]string{
		"status": `{"node":"node-1","ready":true,"guard":{"inForce":true,"drops":[` +
			`{"number":3,"name":"dst_in_range","packets":7}]},"tunnelSources":"believed nodes",` +
			`"devices":[{"name":"veil0","kind":"kernel","publicKey":"` + redacttest.PublishedKey +
			`","up":true}]}`,
		"leakcheck": `{"links":["eth0"],"seconds":60,"frames":900,"tunnel":800}`,
		"drops":     `{"number":1,"reason":"dst_in_range","src":"198.18.0.7"}` + "\n",
	}}
}

// report runs the verb for the cluster, and returns the files by name and the printed output.
func (n *node1) report(t *testing.T, ctx context.Context) (files map[string]string, out string,
	err error) {
	t.Helper()
	server := httptest.NewServer(n)
	t.Cleanup(server.Close)
	k, err := remote.New(&rest.Config{Host: server.URL, BearerToken: redacttest.OwnToken})
	errtest.Must(t, err)
	dir := filepath.Join(t.TempDir(), "audit")
	var printed, progress bytes.Buffer
	err = write(verb.Call{Ctx: ctx, Out: &printed, Progress: &progress}, dir,
		&collector{cluster: k, long: time.Minute, began: time.Now(), progress: &progress})

	files = map[string]string{"progress": progress.String()}
	for _, name := range []string{result.PageFile, result.JSONFile} {
		path := filepath.Join(dir, name)
		files[name] = string(filetest.Read(t, path))
		if sum := sum(files[name]); !strings.Contains(printed.String(), sum+"  "+path) {
			t.Errorf("no SHA-256 %s of %s in:\n%s", sum, name, &printed)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if !strings.Contains(files[result.PageFile], sum(files[result.JSONFile])) {
		t.Error("the page has no SHA-256 of result.json")
	}
	return files, printed.String(), err
}

func sum(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }

// sections returns the verdicts of the sections in result.json by name, and the result.
func sections(t *testing.T, text string) (map[string]result.Verdict, result.Result) {
	t.Helper()
	var r result.Result
	errtest.Must(t, json.Unmarshal([]byte(text), &r))
	verdicts := map[string]result.Verdict{}
	for _, s := range r.Sections {
		verdicts[s.Name] = s.Verdict
	}
	return verdicts, r
}

func TestReportReadsTheCluster(t *testing.T) {
	n := wellNode()
	files, out, _ := n.report(t, t.Context())
	verdicts, r := sections(t, files[result.JSONFile])
	for name, want := range map[string]result.Verdict{"status": result.Good,
		"leakcheck": result.Good, "drops": result.Note, "flows": result.Unseen,
		"connectivity": result.Unseen, "versions": result.Unseen, "exceptions": result.Note} {
		if verdicts[name] != want {
			t.Errorf("%s is %q, want %q", name, verdicts[name], want)
		}
	}
	for _, want := range []string{"this veild has no flows", "no image was given",
		"kubeveil-close.service", "the digest is unknown"} {
		if !strings.Contains(fmt.Sprint(r.Unseen), want) ||
			!strings.Contains(files[result.PageFile], want) {
			t.Errorf("no %q in what was not looked at: %v", want, r.Unseen)
		}
	}
	if !strings.Contains(out, "✓ good          Frames on the nodes' uplinks") ||
		!strings.Contains(files["progress"], "reads the uplinks for 1m0s …") {
		t.Errorf("printed:\n%s%s", out, files["progress"])
	}

	if len(n.made) != 1 || !n.gone {
		t.Fatalf("%d pods were made; namespace deleted: %v", len(n.made), n.gone)
	}
	spec := n.made[0].Spec
	c := spec.Containers[0]
	if !spec.HostNetwork || spec.NodeName != "node-1" || c.Image != "kubeveil" ||
		fmt.Sprint(c.SecurityContext.Capabilities.Add) != "[NET_RAW]" ||
		spec.Volumes[0].HostPath.Path != "/run/kubeveil/veild.sock" {
		t.Errorf("the pod: %+v", spec)
	}
}

func TestReportHasNoSecret(t *testing.T) {
	n := wellNode()
	secret := strings.ReplaceAll(redacttest.Text(), "\n", " ")
	n.answers["status"] = `{"node":"node-1","problems":["` + secret + `"]}`
	n.answers["drops"] = `{"reason":"` + secret + `","token":"` + redacttest.OwnToken + `"}` + "\n"
	n.answers["leakcheck"] = redacttest.Text()
	files, _, err := n.report(t, t.Context())
	for name, text := range files {
		redacttest.Check(t, name, text)
	}
	if !errors.Is(err, verb.ErrWrong) || !strings.Contains(files[result.PageFile], "REDACTED") {
		t.Errorf("a node that is not well: %v", err)
	}
}

func TestReportListsANodeWithoutVeild(t *testing.T) {
	n := wellNode()
	n.Answers["/api/v1/nodes"] = redacttest.ListOf("Node", "v1",
		map[string]any{"metadata": map[string]any{"name": "node-1"}},
		map[string]any{"metadata": map[string]any{"name": "node-2",
			"labels": map[string]any{"kubernetes.io/os": "linux"}}})
	n.answers["flows"] = `{"class":"tunnel","peer":"node-2"}` + "\n" +
		`{"summary":{"count":{"tunnel":1,"outside":9}}}` + "\n"

	files, _, _ := n.report(t, t.Context())
	verdicts, r := sections(t, files[result.JSONFile])
	if verdicts["status"] != result.Bad || verdicts["leakcheck"] != result.Unseen ||
		verdicts["flows"] != result.Unseen {
		t.Errorf("%v", verdicts)
	}
	for _, want := range []string{"Frames on the nodes' uplinks: node-2 " + noPod,
		"Flows by class: node-2 " + noPod, "Dropped packets by reason: node-2 " + noPod} {
		if !strings.Contains(fmt.Sprint(r.Unseen), want) {
			t.Errorf("no %q in %v", want, r.Unseen)
		}
	}
	for _, want := range []string{`>in the tunnel</td><td title="flows">1</td><td title="on nodes">1</td>`,
		`<td class="verdict ">• note</td><td title="class or node">outside, in clear</td>`} {
		if !strings.Contains(files[result.PageFile], want) {
			t.Errorf("no %q on the page", want)
		}
	}
	if *sampleDir != "" {
		filetest.Write(t, filepath.Join(*sampleDir, "audit.html"), []byte(files[result.PageFile]), 0o600)
	}
}

func TestReportSaysWhichRightIsMissing(t *testing.T) {
	n := wellNode()
	n.forbidden = true
	files, _, _ := n.report(t, t.Context())
	verdicts, r := sections(t, files[result.JSONFile])
	if verdicts["leakcheck"] != result.Unseen ||
		!strings.Contains(fmt.Sprint(r.Unseen), "you may not make namespaces") {
		t.Errorf("%v, %v", verdicts, r.Unseen)
	}
}

func TestInterruptedReportSaysSo(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	n := wellNode()
	n.interrupt = interrupt
	files, _, err := n.report(t, ctx)
	verdicts, r := sections(t, files[result.JSONFile])
	if !errors.Is(err, verb.ErrWrong) || !r.Interrupted || r.Verdict == result.Good || !n.gone ||
		!strings.Contains(files[result.PageFile], "INTERRUPTED") || verdicts["status"] != result.Good ||
		!strings.Contains(fmt.Sprint(r.Unseen), "Frames on the nodes' uplinks: node-1 "+interrupted) {
		t.Errorf("%v: %+v, namespace deleted: %v", err, r.Unseen, n.gone)
	}
}

func TestReportCommandLine(t *testing.T) {
	dir := t.TempDir()
	for args, want := range map[string]string{
		"report":                              "--out",
		"report --out " + dir + "/x --for 2h": "between 1s and 1h",
		"report --out " + dir + "/x --kubeconfig /x": "does not exist",
	} {
		err := verbtest.Run(t.Context(), strings.Fields(args), io.Discard, io.Discard, Command())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
