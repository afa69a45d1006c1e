// Package e2e holds nothing but the check of README.md, which says what each folder below is for
// and which test holds each promise.
package e2e
