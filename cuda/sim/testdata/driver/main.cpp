#include "check.h"

int main(int argc, char **argv) {
    for (Test *t = Test::all(); t; t = t->next) {
        if (argc < 2) puts(t->name);
        else if (!strcmp(argv[1], t->name)) return t->run(), failed() ? 1 : 0;
    }
    return argc < 2 ? 0 : 2;
}
