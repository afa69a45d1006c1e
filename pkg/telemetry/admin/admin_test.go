package admin

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/health"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

func readBusy() (telemetry.Status, error) { return busy(), nil }

// busy returns a status with values of the types whose JSON is not the one of encoding/json.
func busy() telemetry.Status {
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	return telemetry.Status{
		Node: "a", Version: "v0.1.0", Started: now.Add(-time.Hour),
		Devices: []telemetry.Device{{Name: "veil0", PublicKey: wgkey.Public{1}}},
		Peers: []telemetry.Peer{{Name: "b", State: telemetry.PeerUp, Handshake: now,
			Endpoint:   netip.MustParseAddrPort("198.19.0.2:51820"),
			AllowedIPs: []netip.Prefix{netip.MustParsePrefix("198.18.2.0/24")}}},
		Guard: telemetry.Guard{InForce: true, Links: []string{"eth0"},
			NodeAddrs: []netip.Addr{netip.MustParseAddr("198.19.0.2")}},
	}
}

// serve serves h on an admin socket until the test ends.
func serve(t *testing.T, h http.Handler) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "run", "veild.sock")
	l, err := Listen(path)
	errtest.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- telemetry.Serve(ctx, l, h, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return path
}

func TestStatusComesThroughTheAdminSocket(t *testing.T) {
	h := health.New(time.Minute, "guard in force")
	path := serve(t, Handler(readBusy, h, nil))
	got, err := Fetch(context.Background(), path)
	errtest.Must(t, err)
	want := busy()
	want.NotReady = []string{"not yet: guard in force"}
	if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{},
		netip.Prefix{})); d != "" {
		t.Errorf("status (-want +got):\n%s", d)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, error %v, want 0600", info.Mode(), err)
	}
}

func TestStatusShowsNoPrivateKey(t *testing.T) {
	// Status may contain public keys, but no other value of 32 bytes.
	s := busy()
	s.Devices[0].PublicKey = wgkey.Public{9, 9}
	w := httptest.NewRecorder()
	h := Handler(func() (telemetry.Status, error) { return s, nil }, health.New(time.Minute), nil)
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, telemetry.StatusPath, nil))
	for _, word := range []string{"private", "secret", "preshared", "token"} {
		if strings.Contains(strings.ToLower(w.Body.String()), word) {
			t.Errorf("the status has a field with %q", word)
		}
	}
	if !strings.Contains(w.Body.String(), wgkey.Public{9, 9}.String()) {
		t.Error("the public key is not shown")
	}
}

func TestFetchWithoutVeild(t *testing.T) {
	path := filepath.Join(t.TempDir(), "veild.sock")
	if _, err := Fetch(context.Background(), path); !errors.Is(err, fs.ErrNotExist) ||
		!strings.Contains(err.Error(), "veild does not run") {
		t.Errorf("no socket: %v", err)
	}
	stale(t, path)
	if _, err := Fetch(context.Background(), path); err == nil ||
		!strings.Contains(err.Error(), "veild does not run") {
		t.Errorf("nobody listens: %v", err)
	}
	odd := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no", http.StatusTeapot)
	}))
	if _, err := Fetch(context.Background(), odd); err == nil ||
		!strings.Contains(err.Error(), "418") {
		t.Errorf("odd answer: %v", err)
	}
}

func TestFetchOfAnAnswerThatIsTooLong(t *testing.T) {
	path := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		part := make([]byte, 1<<20)
		for range maxStatus/len(part) + 1 {
			_, _ = w.Write(part)
		}
	}))
	if _, err := FetchPage(context.Background(), path, "/v1/long"); err == nil ||
		!strings.Contains(err.Error(), "longer than 64 MiB") {
		t.Errorf("got %v", err)
	}
}

// A page with a body accepts only POST, and only bodies of at most MaxPosted bytes.
func TestPageTakesABody(t *testing.T) {
	path := serve(t, Handler(readBusy, health.New(time.Minute), map[string]Page{
		"POST /v1/length": func(r *http.Request) (any, error) {
			body, err := io.ReadAll(r.Body)
			return len(body), err
		}}))
	if got, err := PostPage(t.Context(), path, "POST /v1/length", []byte("abc")); err != nil ||
		string(got) != "3" {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := PostPage(t.Context(), path, "POST /v1/length",
		make([]byte, MaxPosted+1)); !errors.Is(err, ErrNoPage) ||
		!strings.Contains(err.Error(), "too large") {
		t.Errorf("a large body: %v", err)
	}
	if _, err := FetchPage(t.Context(), path, "/v1/length"); err == nil {
		t.Error("the page answers without a body")
	}
}

// The error of a page is its text, and the error for a page that this veild lacks names the page.
func TestErrorsOfPages(t *testing.T) {
	path := serve(t, Handler(readBusy, health.New(time.Minute), map[string]Page{
		"/v1/none":     func(*http.Request) (any, error) { return nil, errors.New("no such pod") },
		"/v1/not-here": func(*http.Request) (any, error) { return nil, NotHere("a/b", nil) },
	}))
	for page, want := range map[string]struct {
		text string
		is   error
	}{
		"/v1/none":     {"no such pod", ErrNoPage},
		"/v1/not-here": {`pod "a/b" is not on this node, which has none`, ErrNotHere},
		"/v1/newer?a=b": {"veild has no page /v1/newer?a=b: it is older or newer than this program",
			ErrNoPage},
	} {
		if _, err := FetchPage(t.Context(), path, page); !errors.Is(err, want.is) ||
			err.Error() != want.text {
			t.Errorf("%s: %v, want %q", page, err, want.text)
		}
	}
}

// stale creates a socket without a listener at path.
func stale(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	errtest.Must(t, err)
	l.SetUnlinkOnClose(false)
	errtest.Must(t, l.Close())
}

func TestListenAdmin(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, "left.sock")
	stale(t, left)
	l, err := Listen(left)
	if err != nil {
		t.Fatalf("a socket that a killed veild left: %v", err)
	}
	defer l.Close()
	if _, err := Listen(left); err == nil || !strings.Contains(err.Error(), "another veild") {
		t.Errorf("in use: %v", err)
	}
	file := filepath.Join(dir, "file")
	filetest.Write(t, file, nil, 0o600)
	if _, err := Listen(file); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a file in its place: %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the file was taken away: %v", err)
	}
}

func FuzzDecodeStatus(f *testing.F) {
	f.Add([]byte(`{"node":"a","peers":[{"name":"b","publicKey":"AAAA"}],
		"table":{"waiting":"2026-01-01T00:00:00Z"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := DecodeStatus(data)
		if err == nil {
			_ = s.Table.Lag(time.Now())
		}
	})
}
