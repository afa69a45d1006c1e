package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// Files of a pod's service account (kubernetes.io/docs/tasks/run-application/access-api-from-pod).
const (
	accountToken = "/var/run/secrets/kubernetes.io/serviceaccount/token"
	accountCA    = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
)

// ask fetches a URL over TLS with the token of the pod's service account, like a client of the API
// server in a pod, and prints the body.
func ask(ctx context.Context, args []string) (any, error) {
	flags := flagsOf("https-get")
	url := flags.String("url", "https://kubernetes.default.svc/version", "URL to fetch")
	timeout := flags.Timeout(10*time.Second, "the request")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}

	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	token, err := os.ReadFile(accountToken)
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(accountCA)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, errors.New(accountCA + " holds no certificate")
	}

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, *url, nil)
	if err != nil {
		return nil, err
	}

	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool,
		MinVersion: tls.VersionTLS12}}}
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s: %s", *url, answer.Status, body)
	}

	fmt.Printf("%s\n", body)
	return nil, nil
}
