package api

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"
)

// Environment variables with the certificate and key of webhook, in PEM.
const (
	certEnv = "LAB_CERT"
	keyEnv  = "LAB_KEY"
)

// reviewLimit is the maximum size of a request in bytes.
const reviewLimit = 4 << 20

// review is the part of an AdmissionReview (admission.k8s.io/v1) that webhook needs.
type review struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Request    *reviewRequest  `json:"request,omitempty"`
	Response   *reviewResponse `json:"response,omitempty"`
}

type reviewRequest struct {
	UID    string `json:"uid"`
	Object struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
	} `json:"object"`
}

type reviewResponse struct {
	UID     string         `json:"uid"`
	Allowed bool           `json:"allowed"`
	Status  map[string]any `json:"status,omitempty"`
}

// judge returns the answer to an admission review. It refuses objects with the label "refuse". The
// message has the label's value and the canary.
func judge(body []byte) (review, error) {
	var r review
	if err := json.Unmarshal(body, &r); err != nil {
		return r, fmt.Errorf("admission review: %w", err)
	}
	if r.Request == nil {
		return r, errors.New("admission review: no request")
	}
	why, refuse := r.Request.Object.Metadata.Labels["refuse"]
	r.Response = &reviewResponse{UID: r.Request.UID, Allowed: !refuse}
	if refuse {
		r.Response.Status = map[string]any{"code": http.StatusForbidden,
			"message": "refused by a pod: " + why + " " + os.Getenv(verb.CanaryEnv)}
	}
	r.Request = nil
	return r, nil
}

// webhook serves admission reviews and an aggregated API over TLS until it gets a signal to end.
func webhook(ctx context.Context, args []string) (any, error) {
	flags := flagsOf("webhook-serve")
	listen := flags.Listen(":8443", "")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	cert, err := tls.X509KeyPair([]byte(os.Getenv(certEnv)), []byte(os.Getenv(keyEnv)))
	if err != nil {
		return nil, fmt.Errorf("%s, %s: %w", certEnv, keyEnv, err)
	}
	server := &http.Server{
		Addr: *listen, ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13},
		Handler:   answers(),
	}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	fmt.Println("listening")
	if err := server.ListenAndServeTLS("", ""); !errors.Is(err, http.ErrServerClosed) {
		return nil, err
	}
	return nil, nil
}

// answers returns the handler for admission reviews and for requests to the aggregated API.
func answers() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /", answerReview)
	mux.HandleFunc("GET /apis/{group}/{version}", answerDiscovery)
	mux.HandleFunc("GET /apis/{group}/{version}/canary", answerCanary)
	return mux
}

// answerDiscovery answers with an APIResourceList (meta/v1) without resources.
func answerDiscovery(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": r.PathValue("group") + "/" +
			r.PathValue("version"), "resources": []any{},
	})
}

func answerCanary(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"kind": "Canary",
		"canary": os.Getenv(verb.CanaryEnv)})
}

func answerReview(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, reviewLimit))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer, err := judge(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}
