package verb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/pkg/remote"
)

// printed runs a verb on nodes and returns its output. Pods have the names of their nodes.
func printed(t *testing.T, nodes []string, json bool,
	exec func(ctx context.Context, pod string) ([]byte, error)) (string, error) {
	t.Helper()
	pods := map[string]string{}
	for _, n := range nodes {
		pods[n] = n
	}
	var out bytes.Buffer
	f := fleet{pods: pods, json: json,
		exec: func(ctx context.Context, pod string, _ ...string) ([]byte, error) {
			return exec(ctx, pod)
		}}
	err := f.all(Call{Ctx: t.Context(), Out: &out, JSON: json}, nodes)
	return out.String(), err
}

func TestNodesThatHangAreLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var nodes []string
		for i := range 40 {
			nodes = append(nodes, fmt.Sprintf("node-%02d", i))
		}
		var now, most atomic.Int64
		got, err := printed(t, nodes, false, func(ctx context.Context, pod string) ([]byte, error) {
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer now.Add(-1)
			if pod == "node-07" {
				return []byte("all is well\n"), nil
			}
			<-ctx.Done()
			return nil, errors.New("exec: no answer in time")
		})

		hung := slices.Concat(nodes[:7], nodes[8:21])
		want := "==> node-07 <==\nall is well\n\n" + strings.Join(hung, ", ") +
			" and 19 more: exec: no answer in time\n1 of 40 nodes answered\n"
		if !errors.Is(err, ErrWrong) || got != want {
			t.Errorf("%v\n%s\nwant\n%s", err, got, want)
		}
		if most.Load() > NodesAtOnce {
			t.Errorf("%d nodes at once, want at most %d", most.Load(), NodesAtOnce)
		}
	})
}

func TestAnswersOfNodes(t *testing.T) {
	wrong := &remote.CommandError{Pod: "a", Status: ExitWrong}
	refused := &remote.CommandError{Pod: "a", Status: ExitWrong,
		Stderr: "veilctl: nothing to show: policy is none"}
	for name, tt := range map[string]struct {
		json bool
		out  string
		err  error
		want string
		// fails is the error that selects the exit status; nil means status 0.
		fails error
	}{
		"well": {false, "fine\n", nil, "==> a <==\nfine\n", nil},
		"answers for b": {false, "==> b <==\nfine\n==> c <==\n", nil,
			"==> a <==\n  ==> b <==\nfine\n  ==> c <==\n", nil},
		"not well": {false, "bad\n", wrong, "bad\n", ErrWrong},
		"refused":  {false, "", refused, "a: nothing to show: policy is none\n0", ErrWrong},
		"cut off":  {false, "half", errors.New("broken pipe"), "a: broken pipe\n", ErrWrong},
		"to a terminal": {false, "\x1b[2Jx\u009b1m\u202e\n", nil,
			"\ufffd[2Jx\ufffd1m\ufffd\n", nil},
		"no JSON":        {true, "fine\n", nil, `"error": "its answer is not JSON"`, ErrWrong},
		"JSON, not well": {true, "{}", wrong, `"answer": {}`, ErrWrong},
		"ended without a word": {false, "", &remote.CommandError{Pod: "a", Status: 137},
			"a: exec in a: command terminated with exit code 137\n", ErrWrong},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := printed(t, []string{"a"}, tt.json,
				func(context.Context, string) ([]byte, error) { return []byte(tt.out), tt.err })
			if !strings.Contains(got, tt.want) || !errors.Is(err, tt.fails) {
				t.Errorf("%v, want %v; no %q in %q", err, tt.fails, tt.want, got)
			}
		})
	}

	if _, err := printed(t, nil, false, nil); !errors.Is(err, ErrWrong) {
		t.Errorf("a cluster without nodes: %v", err)
	}
}

// Each JSON line has the name of its node. For a node without an answer, there is a line with the
// error.
func TestLinesOfNodes(t *testing.T) {
	var out bytes.Buffer
	f := fleet{pods: map[string]string{"a": "a", "b": ""}, json: true, lines: true,
		exec: func(context.Context, string, ...string) ([]byte, error) {
			return []byte("{\"x\":1}\n{}\nnonsense\n"), nil
		}}
	err := f.all(Call{Ctx: t.Context(), Out: &out, JSON: true}, []string{"a", "b"})
	const want = `{"node":"a","x":1}
{"node":"a"}
{"node":"a","error":"its answer is not JSON"}
{"node":"b","error":"no pod of veild on this node"}
`
	if got := out.String(); !errors.Is(err, ErrWrong) || got != want {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
}

func TestFollowedNodes(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	var out, progress bytes.Buffer
	f := fleet{pods: map[string]string{"a": "a", "b": "b", "c": ""},
		stream: func(ctx context.Context, out io.Writer, pod string, _ ...string) error {
			for _, text := range []string{"one\ntw", "o\n", strings.Repeat("x", 100<<10), "left"} {
				if _, err := io.WriteString(out, text); err != nil || pod == "b" {
					return errors.Join(err, errors.New("connection lost"))
				}
			}
			interrupt()
			<-ctx.Done()
			return ctx.Err()
		}}
	err := f.follow(Call{Ctx: ctx, Out: &out, Progress: &progress}, []string{"a", "b", "c"})
	got := out.String()
	if err != nil || !strings.Contains(got, "a  one\n") || !strings.Contains(got, "a  two\n") ||
		!strings.Contains(got, "b  one\n") || len(got) > 101<<10 {
		t.Errorf("%v: %.200s", err, got)
	}

	progress.Reset()
	err = f.follow(Call{Ctx: t.Context(), Out: &out, Progress: &progress}, []string{"b", "c"})
	said := progress.String()
	if !errors.Is(err, ErrWrong) || !strings.Contains(said, "b: connection lost\n") ||
		!strings.Contains(said, "c: no pod of veild on this node\n") {
		t.Errorf("all nodes ended: %v, %s", err, said)
	}

	if err := f.follow(Call{}, make([]string, followedNodes+1)); !errors.Is(err, ErrUsage) {
		t.Errorf("too many nodes: %v", err)
	}
}

// A verb in a pod ends when its caller has ended.
func TestFollowingEndsWithStdin(t *testing.T) {
	in, caller := io.Pipe()
	ctx := untilEnd(t.Context(), in)
	if ctx.Err() != nil {
		t.Error("it ends before its standard input")
	}
	caller.Close()
	<-ctx.Done()
}

// The command line for another node has the flags and arguments of the user's command line.
func TestCommandLineOfOtherNodes(t *testing.T) {
	root, cmd := &cobra.Command{Use: "veilctl"}, &cobra.Command{Use: "drops X", Example: "drops x"}
	cmd.Flags().StringP("port", "p", "", "")
	cmd.Flags().StringSlice("reason", nil, "")
	cmd.Flags().Bool("follow", false, "")
	var got []string
	OnNodeLines(cmd, func(Call, string) error { return nil })
	Root(root)
	root.AddCommand(cmd)
	r := &reach{cmd: cmd, lines: true}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		got = r.commandLine(Call{JSON: true, Args: args}, r.follows())
		return nil
	}

	err := Run(t.Context(), root, []string{"drops", "--node", "a", "-o", "json", "-p", "tcp/80",
		"--reason", "x,y", "--follow", "--", "-z"}, nil, nil)
	want := []string{"drops", "--follow=true", "--port=tcp/80", "--reason=x", "--reason=y",
		"--socket", "/run/kubeveil/veild.sock", "-o", "json", "--until-stdin-ends", "--", "-z"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v\ngot  %q\nwant %q", err, got, want)
	}
}

func TestNoVeildHereNamesTheWayToOthers(t *testing.T) {
	cmd := OnNode(&cobra.Command{Use: "x"}, nil)
	r := &reach{cmd: cmd}
	absent := fmt.Errorf("%w: %w", ErrNoDaemon, fs.ErrNotExist)
	if err := r.hint(absent); !strings.Contains(err.Error(), "write --node NAME or --cluster") ||
		!errors.Is(err, ErrNoDaemon) {
		t.Errorf("%v", err)
	}
	if err := r.hint(ErrNoDaemon); !errors.Is(err, ErrNoDaemon) ||
		err.Error() != ErrNoDaemon.Error() {
		t.Errorf("a veild that hangs: %v", err)
	}
	if err := cmd.Flags().Set("socket", "/x"); err != nil {
		t.Fatal(err)
	}
	if err := r.hint(absent); strings.Contains(err.Error(), "--node") {
		t.Errorf("a socket that was named: %v", err)
	}
}
