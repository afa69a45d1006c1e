package verb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/remote"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
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
		Stderr: "veilctl: policy is none"}
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
		"refused":  {false, "", refused, "a: policy is none\n0", ErrWrong},
		"cut off":  {false, "half", errors.New("broken pipe"), "a: broken pipe\n", ErrWrong},
		"to a terminal": {false, "\x1b[2Jx\u009b1m\u202e\n", nil,
			"\ufffd[2Jx\ufffd1m\ufffd\n", nil},
		"no JSON":        {true, "fine\n", nil, `"error": "its answer is not JSON"`, ErrWrong},
		"JSON, not well": {true, "{}", wrong, `"answer": {}`, ErrWrong},
		"JSON to a terminal": {true, `{"a":"\u009b2J\ud83d\ude00"}`, nil,
			`"a": "\ufffd2J\ud83d\ude00"`, nil},
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

// A pod is on one node. The others have nothing to answer about it.
func TestNodesWithoutThePodAreLeftOut(t *testing.T) {
	notHere := &remote.CommandError{Pod: "a", Status: ExitNotHere,
		Stderr: "veilctl: pod \"x\" is not on this node: its pods are y"}
	for name, tt := range map[string]struct {
		has   string
		want  string
		fails error
		says  string
	}{
		"one has it":  {"b", "==> b <==\nfine\n", nil, "<nil>"},
		"none has it": {"", "", admin.ErrNotHere, "no node has the pod; one of them: pod \"x\" is not"},
	} {
		got, err := printed(t, []string{"a", "b", "c"}, false,
			func(_ context.Context, pod string) ([]byte, error) {
				if pod == tt.has {
					return []byte("fine\n"), nil
				}
				return nil, notHere
			})
		if got != tt.want || !errors.Is(err, tt.fails) ||
			!strings.HasPrefix(fmt.Sprint(err), tt.says) {
			t.Errorf("%s: %v, %q", name, err, got)
		}
	}
}

// Each JSON line has the name of its node, and only this one. For a node without an answer, there
// is a line with the error.
func TestLinesOfNodes(t *testing.T) {
	var out bytes.Buffer
	f := fleet{pods: map[string]string{"a": "a", "b": ""}, json: true, lines: true,
		exec: func(context.Context, string, ...string) ([]byte, error) {
			return []byte("{\"x\":1}\n{}\nnonsense\nnull\n" +
				`{"node":"b","x":2,"Node":"b","\u006eode":"b"}` + "\n" +
				`{"x":"\u001b[2J\u202e","y":[1.0]}` + "\n"), nil
		}}
	err := f.all(Call{Ctx: t.Context(), Out: &out, JSON: true}, []string{"a", "b"})
	const want = `{"node":"a","x":1}
{"node":"a"}
{"node":"a","error":"its answer is not JSON"}
{"node":"a","error":"its answer is not JSON"}
{"node":"a","x":2}
{"node":"a","x":"\ufffd[2J\ufffd","y":[1.0]}
{"node":"b","error":"no pod of veild on this node"}
`
	if got := out.String(); !errors.Is(err, ErrWrong) || got != want {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
}

func TestFollowedNodes(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	var out bytes.Buffer
	pods := map[string]string{"a": "a", "b": "b", "c": ""}
	f := fleet{pods: pods,
		find: func(context.Context) (map[string]string, error) { return pods, nil },
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
	err := f.follow(Call{Ctx: ctx, Out: &out, Progress: io.Discard}, []string{"a", "b", "c"})
	got := out.String()
	if err != nil || !strings.Contains(got, "a  one\n") || !strings.Contains(got, "a  two\n") ||
		!strings.Contains(got, "b  one\n") || len(got) > 101<<10 {
		t.Errorf("%v: %.200s", err, got)
	}

	if err := f.follow(Call{}, make([]string, followedNodes+1)); !errors.Is(err, ErrUsage) {
		t.Errorf("too many nodes: %v", err)
	}
}

// A node whose veild was replaced is followed again, from its last line on.
func TestReplacedVeildIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		var out, progress bytes.Buffer
		var got [][]string
		f := fleet{pods: map[string]string{"a": "old"}, json: true, since: true,
			args: []string{"drops", "--since=10m0s"},
			find: func(context.Context) (map[string]string, error) {
				return map[string]string{"a": "new"}, nil
			},
			stream: func(_ context.Context, out io.Writer, pod string, args ...string) error {
				got = append(got, args)
				fmt.Fprintf(out, "{\"from\":%q}\n{\"cut", pod)
				if pod == "new" {
					interrupt()
				}
				return &remote.CommandError{Pod: pod, Status: 137}
			}}
		err := f.follow(Call{Ctx: ctx, Out: &out, Progress: &progress, JSON: true}, []string{"a"})
		const killed = "exec in old: command terminated with exit code 137"
		want := `{"node":"a","from":"old"}` + "\n" + `{"node":"a","error":"` + killed + `"}` + "\n" +
			`{"node":"a","from":"new"}` + "\n"
		if err != nil || out.String() != want || progress.String() != "a: "+killed+"\n" {
			t.Errorf("%v: %s, %s", err, &out, &progress)
		}
		if len(got) != 2 || len(got[0]) != 2 || len(got[1]) != 3 || got[1][2] != "--since=3s" {
			t.Errorf("command lines %q", got)
		}
	})
}

func TestNodesThatCannotBeFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		follow := func(err error) (string, error) {
			var progress bytes.Buffer
			pods := map[string]string{"b": "b", "c": ""}
			f := fleet{pods: pods,
				find:   func(context.Context) (map[string]string, error) { return pods, nil },
				stream: func(context.Context, io.Writer, string, ...string) error { return err }}
			err = f.follow(Call{Ctx: t.Context(), Out: io.Discard, Progress: &progress},
				slices.Sorted(maps.Keys(pods)))
			return progress.String(), err
		}

		began := time.Now()
		said, err := follow(errors.New("connection lost"))
		if !errors.Is(err, ErrWrong) || strings.Count(said, "b: connection lost\n") != 1 ||
			strings.Count(said, "c: no pod of veild on this node\n") != 1 {
			t.Errorf("all nodes ended: %v, %s", err, said)
		}
		if d := time.Since(began); d > resumeFor+2*resumeEvery {
			t.Errorf("they were tried again for %v", d)
		}
		said, err = follow(&remote.CommandError{Status: ExitNotHere, Stderr: "veilctl: not here"})
		if !errors.Is(err, ErrWrong) || strings.Contains(said, "b: ") {
			t.Errorf("the pod is on no node that answered: %v, %s", err, said)
		}
	})
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
	errtest.Must(t, cmd.Flags().Set("socket", "/x"))
	if err := r.hint(absent); strings.Contains(err.Error(), "--node") {
		t.Errorf("a socket that was named: %v", err)
	}
}
