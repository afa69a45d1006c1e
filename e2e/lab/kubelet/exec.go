package kubelet

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// server is the part of a kubelet's API that the API server uses for exec.
type server struct {
	http  *http.Server
	ended chan error
}

// serve listens on the node. As by default, the API server does not verify the certificate.
func (k *Kubelet) serve() error {
	cert, err := certificate()
	if err != nil {
		return err
	}
	var listener net.Listener
	if err := k.Node.Do(func() (err error) {
		listener, err = net.Listen("tcp", fmt.Sprintf(":%d", Port))
		return err
	}); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", k.exec)
	k.server = &server{http: &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute,
		ErrorLog:     slog.NewLogLogger(k.Log.Handler(), slog.LevelDebug),
		TLSConfig:    &tls.Config{Certificates: []tls.Certificate{cert}},
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}},
		ended: make(chan error, 1)}
	go func() { k.server.ended <- k.server.http.ServeTLS(listener, "", "") }()
	return nil
}

func (s *server) close() error {
	err := s.http.Close()
	if ended := <-s.ended; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}

func certificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// exec runs a program in a pod.
func (k *Kubelet) exec(w http.ResponseWriter, r *http.Request) {
	p := k.running(r.PathValue("namespace"), r.PathValue("pod"))
	if p == nil {
		http.Error(w, "the pod does not run", http.StatusNotFound)
		return
	}
	i := slices.IndexFunc(p.object.Spec.Containers, func(c corev1.Container) bool {
		return c.Name == r.PathValue("container")
	})
	if i < 0 {
		http.Error(w, "the pod has no such container", http.StatusNotFound)
		return
	}
	c := p.object.Spec.Containers[i]
	serveExec(w, r, func(ctx context.Context, command []string, out, errOut io.Writer) error {
		m, err := k.images.get(c.Image)
		if err != nil {
			return err
		}
		line := slices.Concat(k.inside(p, m, c), command)
		cmd := p.pod.Command(ctx, line[0], line[1:]...)
		cmd.Stdout, cmd.Stderr = out, errOut
		return cmd.Run()
	})
}

// maxStreams is the largest number of streams of a request.
const maxStreams = 5

// serveExec answers a request to run a program, by the protocol v4.channel.k8s.io on SPDY. Standard
// input is not read. With a terminal, both outputs are one, but there is no terminal.
func serveExec(w http.ResponseWriter, r *http.Request,
	run func(ctx context.Context, command []string, out, errOut io.Writer) error) {
	q := r.URL.Query()
	want := 1 // the status
	parameters := []string{corev1.ExecStdinParam, corev1.ExecStdoutParam, corev1.ExecStderrParam}
	if q.Get(corev1.ExecTTYParam) == "1" { // a stream of sizes, and none of errors
		parameters[2] = corev1.ExecTTYParam
	}
	for _, name := range parameters {
		if q.Get(name) == "1" {
			want++
		}
	}
	if _, err := httpstream.Handshake(r, w, []string{remotecommand.StreamProtocolV4Name}); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	type arrived struct {
		httpstream.Stream
		replied <-chan struct{}
	}
	all := make(chan arrived, maxStreams)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r,
		func(s httpstream.Stream, replied <-chan struct{}) error {
			select {
			case all <- arrived{s, replied}:
				return nil
			default:
				return errors.New("too many streams")
			}
		})
	if conn == nil {
		return // the client has the error
	}
	defer conn.Close()

	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	context.AfterFunc(ctx, func() { conn.Close() })
	go func() {
		<-conn.CloseChan()
		cancel()
	}()
	streams := map[string]io.Writer{}
	for range want {
		select {
		case s := <-all:
			<-s.replied
			streams[s.Headers().Get(corev1.StreamType)] = s
		case <-ctx.Done():
			return
		}
	}
	out, errOut := streams[corev1.StreamTypeStdout], streams[corev1.StreamTypeStderr]
	if errOut == nil {
		errOut = out
	}
	text, err := json.Marshal(statusOf(run(ctx, q[corev1.ExecCommandParam], out, errOut)))
	if status := streams[corev1.StreamTypeError]; err == nil && status != nil {
		_, _ = status.Write(text) // the client may have gone
	}
}

// statusOf returns the status of a program that has ended.
func statusOf(err error) metav1.Status {
	if err == nil {
		return metav1.Status{Status: metav1.StatusSuccess}
	}
	s := metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		s.Reason = remotecommand.NonZeroExitCodeReason
		s.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{
			Type: remotecommand.ExitCodeCauseType, Message: strconv.Itoa(exit.ExitCode())}}}
	}
	return s
}
