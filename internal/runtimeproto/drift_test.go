package runtimeproto_test

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"

	"dagger/parity/internal/runtimeproto"
)

const source = "runtime.proto"

// compiled is the .proto, compiled without protoc.
func compiled(t *testing.T) *descriptorpb.FileDescriptorProto {
	t.Helper()
	c := protocompile.Compiler{Resolver: &protocompile.SourceResolver{}, SourceInfoMode: protocompile.SourceInfoStandard}
	files, err := c.Compile(t.Context(), source)
	if err != nil {
		t.Fatal(err)
	}
	return protodesc.ToFileDescriptorProto(files[0])
}

// The generated code is what the generators make of the .proto, byte for byte. They are fed by a compiler written in Go, so this needs
// no protoc.
func TestGeneratedCodeIsThatOfTheProto(t *testing.T) {
	for tool, file := range map[string]string{"protoc-gen-go": "runtime.pb.go", "protoc-gen-go-grpc": "runtime_grpc.pb.go"} {
		committed, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want := string(generated(t, tool, string(committed)))
		have, line := strings.Split(string(committed), "\n"), 0
		for i, l := range strings.Split(want, "\n") {
			if i >= len(have) || have[i] != l {
				line = i + 1
				t.Errorf("%s:%d is not what %s makes of %s: it would be %q. Run: go generate ./internal/runtimeproto", file, line, tool, source, l)
				break
			}
		}
		if line == 0 && want != string(committed) {
			t.Errorf("%s is longer than what %s makes of %s. Run: go generate ./internal/runtimeproto", file, tool, source)
		}
	}
}

// generated runs a generator as protoc does. The version of protoc is that of the committed file.
func generated(t *testing.T, tool, committed string) []byte {
	t.Helper()
	version := regexp.MustCompile(`protoc +v(\d+)\.(\d+)\.(\d+)`).FindStringSubmatch(committed)
	if version == nil {
		t.Fatal("the committed file does not name its protoc")
	}
	number := func(i int) *int32 {
		n := int32(0)
		for _, d := range version[i] {
			n = n*10 + d - '0'
		}
		return &n
	}
	// protoc 3.21.12 tells its generators that it is 3.21.12.
	request, err := proto.Marshal(&pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{source}, Parameter: proto.String("paths=source_relative"),
		ProtoFile:       []*descriptorpb.FileDescriptorProto{compiled(t)},
		CompilerVersion: &pluginpb.Version{Major: number(1), Minor: number(2), Patch: number(3)},
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "tool", tool)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(request), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go tool %s: %v", tool, err)
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(out, &response); err != nil {
		t.Fatal(err)
	}
	if response.GetError() != "" || len(response.File) != 1 {
		t.Fatalf("%s gives %d files and the error %q", tool, len(response.File), response.GetError())
	}
	return []byte(response.File[0].GetContent())
}

// What is compiled in is what the .proto says, whatever the generated files look like.
func TestEmbeddedDescriptorIsThatOfTheProto(t *testing.T) {
	want := compiled(t)
	want.SourceCodeInfo = nil
	got := protodesc.ToFileDescriptorProto(runtimeproto.File_runtime_proto)
	if !proto.Equal(got, want) {
		t.Errorf("the descriptor in the generated code is\n%v\nand that of %s\n%v", got, source, want)
	}
}
